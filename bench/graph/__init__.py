"""Models of variables and factors: what they take and what they are worth."""
