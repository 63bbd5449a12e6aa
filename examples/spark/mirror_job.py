"""`mqbridge spark mirror` as a job file for spark-submit. It takes the arguments of that command.

spark-submit --master spark://master:7077 examples/spark/mirror_job.py CONFIG --checkpoint hdfs://nn/mirror
"""

import sys

from mqbridge.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["spark", "mirror"]
    main()
