"""Foreign checkpoint formats, one file each: a table of names and what is made of it."""
