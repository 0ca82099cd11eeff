"""What people look at: the server's page, and the skeleton and figures of the report."""
