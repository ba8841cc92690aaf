"""The service, its clients and its neighbours."""
