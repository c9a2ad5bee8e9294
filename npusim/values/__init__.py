"""What comes out, bit for bit."""
