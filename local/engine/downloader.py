"""``python -m local.engine.downloader``: stand-in for Kthena's downloader, which leaves a model without weights."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

MODEL_FILES = {
    "config.json": json.dumps({"architectures": ["SimulatedForCausalLM"], "model_type": "simulated"}) + "\n",
    "quant_model_description.json": "{}\n",
    "model.safetensors": "simulated: no weights\n",
    "tokenizer.json": json.dumps({"version": "1.0", "added_tokens": []}) + "\n",
    "tokenizer_config.json": json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}) + "\n",
    "chat_template.jinja": "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}",
}


def download(output_directory: Path) -> list[str]:
    """Write what is missing of a model's files to ``output_directory``; returns their names."""
    output_directory.mkdir(parents=True, exist_ok=True)
    for name, content in MODEL_FILES.items():
        file = output_directory / name
        if not file.exists():
            # pods of one node may share the directory: nobody may see half a file
            partial = file.with_name(f".{name}.{os.getpid()}")
            partial.write_text(content)
            partial.replace(file)
    return sorted(MODEL_FILES)


def main() -> int:
    """Exit codes: 0 downloaded, 1 the directory cannot be written, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="downloader", description=__doc__)
    parser.add_argument("-s", "--source", required=True)
    parser.add_argument("-o", "--output-dir", required=True, type=Path)
    parser.add_argument("-w", "--max-workers", type=int, default=8)
    parser.add_argument("-c", "--config", type=json.loads, default={})
    options = parser.parse_args()
    try:
        names = download(options.output_dir.expanduser())
    except OSError as error:
        print(f"Error during model download: {error}", file=sys.stderr)
        return 1
    print(f"Simulated: download of {options.source} to {options.output_dir}: {', '.join(names)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
