"""Operations on whole maps: `box.py` for any shape, `window.py` faster for windows of neighbours, and `backward.py`."""
