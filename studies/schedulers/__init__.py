"""What follows from the rows of a study: which trials there are, and how far each is trained."""
