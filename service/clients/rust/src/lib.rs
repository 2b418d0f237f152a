//! A client of Latchgate.
