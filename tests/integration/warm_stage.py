"""What stage processes are forked from where tests need many of them: one that has imported what they import.

Imported there first. Such a process is the fork server's child, so it can be tied to nobody's life but by its pipes.
"""

import stages.models.qwen3_omni.code2wav_runner
import stages.models.qwen3_omni.talker_runner
import stages.models.qwen3_omni.thinker_runner
import stages.models.qwen_image.stage
import stages.worker.main  # noqa: F401
from stages.worker import bootstrap

bootstrap.die_with = lambda parent_pid: None
