"""The treatment of commands that do not run as they are written: the whole list, with reasons.

A pattern is a regular expression that must match the whole command, with single spaces. Every row must be of use to
some page. A command in no list runs as it is written.
"""
import re

ANY_PAGE = r".*"

# (page, command, why it does not run)
NOT_RUN = [
    (ANY_PAGE, r"meson test .*", "runs other tests"),
    (ANY_PAGE, r"(python3 |\./)?tests/(restart|fuzz|mpi)/.*", "another test, or its long form"),
    (ANY_PAGE, r"ESPALIER_F(AULTS|ULL_DISKS)=.*", "the long form of a unit test"),
    (ANY_PAGE, r"build-libfuzzer/.*", "the long form of a fuzz target"),
    (ANY_PAGE, r".*tests/predict/(calibrated|order)\.py.*", "the long form of another test"),
    (ANY_PAGE, r"(ESPALIER(_ISA)?=\S+ )?(ninja .*&& )?(python3 tests/bench/|bench/cpu/).*",
     "a benchmark of some minutes"),
    (ANY_PAGE, r"(CXX=\S+ )?meson setup .*|meson (compile|install) .*|(CCACHE_DISABLE=1 )?ninja .*",
     "builds"),
    (ANY_PAGE, r"(\./)?jobscripts/install_packages\.sh", "installs packages"),
    (ANY_PAGE, r"(tests|bench)/gpu/\S+( [\w. -]+)?", "needs a GPU"),
    (ANY_PAGE, r"build/espalier (calibrate --attention|(calibrate|run) .*gemm.plans).*|nsys .*(\n.*)*", "needs a GPU"),
    ("doc/gpu.md", r"python3 tests/gpu/compare\.py .*", "needs the emulation of GPUs; mpi/emulated.py runs it"),
    (ANY_PAGE, r"(python3 -m )?pip install .*", "installs a package; python/read_runs.py does"),
    (ANY_PAGE, r"espalier-(runs|wandb) .*|python3 -c 'import h5py.*", "needs packages; python/read_runs.py runs it"),
    (ANY_PAGE, r"h5dump .*", "needs the tools of HDF5"),
    (ANY_PAGE, r"tensorboard .*", "a server; reference/event_files.py reads its files"),
    ("doc/evaluate.md", r"python3 -m venv lm_eval .*|lm_eval/bin/lm_eval .*|accelerate launch .*",
     "installs a package, downloads tasks, and needs a GPU"),
    (ANY_PAGE, r"module .*|spack .*|docker .*|apptainer .*|mpirun .*apptainer .*", "needs another system"),
    (ANY_PAGE, r"git archive .*|eb .*|kubectl .*", "needs EasyBuild or Kubernetes; install/recipes.py reads the files"),
    (ANY_PAGE, r"srun .*", "needs Slurm"),
]

TINY = "build/espalier inputs/llama/tiny.toml"
EIGHT = "build/espalier inputs/llama/tiny-8.toml"
MPI = "mpirun -n 8 --oversubscribe --bind-to none"

# (page, command, what runs instead, in what it differs). \g<0> is the command itself.
INSTEAD = [
    (ANY_PAGE, r"(\./)?jobscripts/workstation\.sh.*", f"{MPI} {EIGHT}", "without installing, building and the text"),
    ("doc/install.md", r"\$HOME/espalier/share/espalier/jobscripts/workstation\.sh",
     "$HOME/espalier/share/espalier/jobscripts/workstation.sh --help", "prints its help only"),
    (ANY_PAGE, r"kill -USR1 PID",
     f"({TINY} run.dir=runs/stopped run.steps=1000000 & PID=$!; "
     "until [ -f runs/stopped/metrics.jsonl ]; do sleep 0.1; done; kill -USR1 $PID; wait $PID; test $? = 75)",
     "begins a run, and checks that it exits with 75"),
    (ANY_PAGE, r".*espalier inputs/\S*/tiny\.toml .*run\.dir=runs/mine .*", r"\g<0> run.steps=20", "20 steps"),
    ("doc/finetune.md", r"espalier runs/\w+/deck\.toml .*", r"\g<0> run.steps=2", "2 steps"),
    (ANY_PAGE, r".*espalier \S+/hf/deck\.toml .*|espalier RUN_DIR/deck\.toml .*", r"\g<0> run.steps=2", "2 steps"),
    ("doc/calibrate.md", r"espalier calibrate FILE .*", "espalier calibrate FILE --deck DECK", "with one deck"),
    ("doc/calibrate.md", r"mpirun -n 8 (espalier calibrate .*)dp_shard=8", r"mpirun -n 2 \1dp_shard=2", "on 2 ranks"),
    ("doc/sites.md", r"jobscripts/(pbs|lsf)\.sh .*",
     r"mkdir -p queue/jobs && STAND_INS=$PWD/queue PATH=$PWD/tests/jobscripts/stand_ins:$PATH \g<0> "
     "checkpoint.restart=auto",
     "a program in place of the scheduler notes the job; the small deck would begin each job anew"),
    ("doc/install.md", r"mpirun .*/tiny-8\.toml", r"\g<0> run.steps=20", "20 steps"),
    ("doc/(data|tokenize).md", r"espalier inputs/gpt2/124m\.toml", "espalier check inputs/gpt2/124m.toml",
     "is checked only"),
]

SMALL = "tests/decks/small.toml"

# Values of what a page leaves open: (page, name, value).
PLACEHOLDERS = [
    ("doc/(sleep|timeline).md", "DECK", f"{SMALL} parallel.dp_shard=-1"),
    ("doc/(?!sleep|timeline).*", "DECK", SMALL),
    ("doc/calibrate.md", "FILE", "measured.toml"),
    ("README.md|doc/(huggingface|finetune).md", "HF_DIR", "given/hf"),
    ("README.md|doc/(huggingface|finetune).md", "OUT", "given/out"),
    ("doc/huggingface.md", "RUN_DIR", "runs/hf"),
]

ONE_RANK = f"{TINY} parallel.pp=1 parallel.dp_shard=1 parallel.tp=1"

# Files that a page takes as given: (page, the command that makes them).
GIVEN = [
    ("README.md", "cp doc/metrics.md my.txt"),
    ("README.md|doc/(tokenize|data|evaluate).md", "mkdir -p gpt2 my_texts && cp tests/data/tokenizer.json gpt2/ && "
     "cp doc/data.md my_texts/one.txt && cp doc/plan.md my_texts/other.txt"),
    ("doc/tokenize.md", "mkdir more && printf '{\"text\": \"A lattice.\"}\\n{\"text\": \"A tree.\"}\\n' >more/a.jsonl"),
    ("doc/tokenize.md", "printf 'The tree\\nA lattice\\n' >prompts.txt"),
    ("doc/(tokenize|evaluate).md", f"{ONE_RANK} run.steps=2 run.dir=runs/mine data.tokenizer=tests/data/tokenizer.json "
     "model.vocab=600"),
    ("doc/metrics.md", f"{ONE_RANK} run.steps=2 run.dir=runs/mine"),
    ("README.md|doc/huggingface.md", f"{ONE_RANK} run.steps=2 run.dir=given/run model.vocab=600 && "
     "build/espalier export given/run/checkpoints/latest given/hf"),
    ("README.md|doc/huggingface.md", "build/espalier tokenize tests/data/tokenizer.json doc/data.md -o tokens.bin"),
    ("doc/finetune.md", f"{ONE_RANK} run.steps=2 run.dir=given/run model.vocab=600 "
     "data.tokenizer=tests/data/tokenizer.json && build/espalier export given/run/checkpoints/latest given/hf && "
     "cp tests/reference/templates/generation.jinja given/hf/chat_template.jinja"),
    ("doc/finetune.md", "for i in $(seq 2000); do echo '{\"text\": \"It was a dark and stormy night, number '$i'.\"}'; "
     "done > my.jsonl"),
    ("doc/finetune.md", "for i in $(seq 2000); do echo '{\"messages\": [{\"role\": \"user\", \"content\": "
     "\"Number '$i'?\"}, {\"role\": \"assistant\", \"content\": \"It is even or odd.\"}]}'; done > chat.jsonl"),
    ("doc/install.md", "mkdir -p $HOME/espalier/share $HOME/espalier/bin && "
     "ln -s $PWD $HOME/espalier/share/espalier && ln -s $PWD/build/espalier $HOME/espalier/bin"),
]


def row_of(table, page, command):
    """The first row of a table for a command of a page, or None."""
    for row in table:
        if re.fullmatch(row[0], page) and re.fullmatch(row[1], command):
            return row
    return None
