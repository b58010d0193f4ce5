//! What the tests of the stores share: private servers and faults.

pub mod model;
pub mod process;
pub mod proxy;
pub mod servers;
pub mod taker;
