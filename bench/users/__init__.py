"""What a user gets who gives no arguments."""
