"""Maps up to 32 wide in the registers of a warp, the whole network in one launch."""
