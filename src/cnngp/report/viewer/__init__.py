"""`cnngp view`: a page on this machine that shows what a model sees in an image, and goes through suspect labels."""
