"""What rows of files are made of: tables, JSON documents, values written as text."""
