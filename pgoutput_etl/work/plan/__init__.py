"""The dry run: prints what apply would do and writes nothing."""
