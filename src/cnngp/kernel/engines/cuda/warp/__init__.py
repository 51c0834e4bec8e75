"""Kernel for maps up to 32 wide, in the registers of a warp, with the whole network in one launch."""
