#!/usr/bin/env python3
"""Draws what `mayfly_load --sizes` has printed: each operation's CPU as a multiple of a ping, over the documents.

    bench/plot_sizes.py TABLE.md OUT.svg
"""

import math, sys
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 60, 300, 30, 50
COLOURS = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910"]
DASHES = {"after the load": "2 3", "settled": "none", "after updates": "7 3"}


def rows(path):
    """(documents, state, operation, multiple of a ping) of each row that has one."""
    for line in open(path):
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) == 11 and cells[0].isdigit() and cells[6]:
            yield int(cells[0]), cells[1], cells[2], float(cells[6])


def main():
    lines = {}
    for documents, state, operation, multiple in rows(sys.argv[1]):
        lines.setdefault((operation, state), []).append((documents, multiple))
    if not lines:
        sys.exit("no rows with a multiple of a ping in " + sys.argv[1])
    sizes = sorted({d for points in lines.values() for d, _ in points})
    highest = math.ceil(max(m for points in lines.values() for _, m in points))
    low, high = math.log10(sizes[0]), math.log10(max(sizes[-1], sizes[0] * 10))

    def x(documents):
        return LEFT + (math.log10(documents) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(multiple):
        return TOP + (1 - multiple / highest) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">server CPU of an operation, as a multiple of a ping</text>',
    ]
    for step in range(0, highest + 1, max(1, highest // 10)):
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(step):.1f}" y2="{y(step):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{step}</text>')
    for size in sizes:
        out.append(f'<text x="{x(size):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{size:,}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">documents</text>')
    operations = sorted({operation for operation, _ in lines})
    for i, ((operation, state), points) in enumerate(sorted(lines.items())):
        colour = COLOURS[operations.index(operation) % len(COLOURS)]
        style = f'stroke="{colour}" stroke-dasharray="{DASHES.get(state, "1 2")}" stroke-width="2" fill="none"'
        path = " ".join(f"{x(d):.1f},{y(m):.1f}" for d, m in sorted(points))
        out.append(f'<polyline points="{path}" {style}/>')
        for d, m in points:
            out.append(f'<circle cx="{x(d):.1f}" cy="{y(m):.1f}" r="2.5" fill="{colour}"/>')
        at = TOP + 10 + i * 20
        out.append(f'<line x1="{WIDTH - RIGHT + 16}" x2="{WIDTH - RIGHT + 46}" y1="{at}" y2="{at}" {style}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 52}" y="{at + 4}">{escape(operation)}, {escape(state)}</text>')
    out.append("</svg>")
    open(sys.argv[2], "w").write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
