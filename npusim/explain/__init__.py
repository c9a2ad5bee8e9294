"""What people ask about numbers and calls: packed scales, contracts, differences."""
