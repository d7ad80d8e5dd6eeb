"""A mail store in memory: the reader and the writer of IMAP over dicts and lists, without a disk."""
