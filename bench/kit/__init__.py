"""What the measuring tools share: processes, servers, load, figures."""
