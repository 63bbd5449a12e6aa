"""The web methods of a Master and of a Broker that scripts use."""
