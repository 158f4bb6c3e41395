"""What can be declared, as frozen pydantic types: no Pulumi, no files, no network."""
