"""What every room needs and no room owns: arrays, files, locks, memory, errors."""
