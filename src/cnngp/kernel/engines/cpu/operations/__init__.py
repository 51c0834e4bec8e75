"""Operations on whole maps: `box.py` for any shape, `window.py` for common windows, `backward.py` for gradients."""
