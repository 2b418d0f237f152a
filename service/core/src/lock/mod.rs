//! The rules of locks.
