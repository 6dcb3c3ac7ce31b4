"""Cases that need a Django project of their own; run by the tests beside this directory."""
