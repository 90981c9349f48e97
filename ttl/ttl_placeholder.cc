// Gone with the first real source.
