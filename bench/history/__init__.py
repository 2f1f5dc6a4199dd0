"""Speed over the revisions of the repository."""
