"""What must hold, and within which bounds."""
