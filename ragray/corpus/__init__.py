"""Documents in, passages out: readers of corpus files and the split into passages."""
