"""The study of docs/study.md: trained and evaluated cell by cell, by one command."""
