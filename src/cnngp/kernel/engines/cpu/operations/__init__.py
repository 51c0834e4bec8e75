"""Operations on whole maps: `box.py` for any shape, `window.py` for windows of neighbours, `backward.py` for gradients.
"""
