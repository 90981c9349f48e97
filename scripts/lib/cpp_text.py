"""What the checks of C++ beside this file share: its text without what is not code, and where a block ends. All keep
every place and line where it was."""

import re


def _spaces(m):
    return re.sub(r"[^\n]", " ", m.group())


def without_comments(text):
    """Comments as spaces."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", _spaces, text, flags=re.S)


def blank(text):
    """Comments and what stands in quotes as spaces, so that they match nothing. The quotes stay; those of raw strings
    do not."""
    text = re.sub(r'R"(\w*)\(.*?\)\1"', _spaces, without_comments(text), flags=re.S)
    return re.sub(
        r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'',
        lambda m: m.group()[0] + " " * (len(m.group()) - 2) + m.group()[-1],
        text,
    )


def body_end(text, at, brackets="{}"):
    """Behind the bracket that closes the block whose first character is at `at`."""
    depth = 1
    while at < len(text) and depth:
        depth += {brackets[0]: 1, brackets[1]: -1}.get(text[at], 0)
        at += 1
    return at


def marked(text, at, word):
    """Whether the line of this place, or the one before it, has the mark `word`, as in "unused: why"."""
    line = text.count("\n", 0, at)
    return any(word in of for of in text.split("\n")[max(0, line - 1) : line + 1])
