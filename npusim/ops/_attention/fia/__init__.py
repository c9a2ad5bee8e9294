"""Kernel FIA: attention over tiles of many keys, its rows and tiles split over cores by cost."""
