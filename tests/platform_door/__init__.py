"""The name `platform`: every pitfall of sharing it with the standard library."""
