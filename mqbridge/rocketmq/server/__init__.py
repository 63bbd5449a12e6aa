"""The server for RocketMQ clients: a name server and a broker on one port."""
