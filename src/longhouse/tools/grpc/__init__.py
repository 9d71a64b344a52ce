"""Tools at gRPC servers: the service that they offer (tool.proto), its messages, and the connections to them."""
