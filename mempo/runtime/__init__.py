"""Ground floor: processes, files, progress, errors. Imports no other room."""
