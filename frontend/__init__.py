"""Models in, graphs out. Import the module for the kind of model: nothing is loaded from here."""
