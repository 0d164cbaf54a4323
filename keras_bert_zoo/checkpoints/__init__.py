"""Foreign checkpoint formats, one file each: a table of names that is read both ways."""
