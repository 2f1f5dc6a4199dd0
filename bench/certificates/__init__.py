"""Whether certificates certify: checks of posteriors against long runs and known failures."""
