"""What answers each code of the remoting protocol, by subject; importing them declares them."""
