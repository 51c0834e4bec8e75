"""Operations on whole maps: `box.py` for any shape, `window.py` and `both.py` faster for windows of neighbours."""
