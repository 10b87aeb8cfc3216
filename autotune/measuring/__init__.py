"""Records of what was measured, and the statistics derived from them."""
