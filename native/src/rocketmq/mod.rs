//! Records of RocketMQ, and what a send request carries.
