//! Stores of subscribers.
