"""Tools for tests of code that uses this library: a virtual clock, a fake port, an embedded broker."""
