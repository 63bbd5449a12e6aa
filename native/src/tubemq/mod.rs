//! Packs of TubeMQ, and its send requests.
