"""In which order a library adds, found out by products whose terms cancel."""
