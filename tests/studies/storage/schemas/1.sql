-- A database of schema 1, as it was when that schema was released; never to be changed.
BEGIN TRANSACTION;
CREATE TABLE rk_blob (
	digest TEXT NOT NULL,
	size INTEGER NOT NULL,
	data BLOB NOT NULL,
	PRIMARY KEY (digest)
);
INSERT INTO "rk_blob" VALUES('604c3e77f80e126765b5cfb0b06eb5d5f6767784b31dd3e10c91c318cafd4753',10,X'736F6D65207374617465');
CREATE TABLE rk_checkpoint (
	id INTEGER NOT NULL,
	uid TEXT NOT NULL,
	epochs INTEGER NOT NULL,
	digest TEXT NOT NULL,
	manifest BLOB NOT NULL,
	lease_epoch INTEGER NOT NULL,
	created DOUBLE NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(uid) REFERENCES rk_task (uid)
);
INSERT INTO "rk_checkpoint" VALUES(1,'a',3,'44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a',X'7B7D',1,1.79525187086000728611e+09);
CREATE TABLE rk_checkpoint_blob (
	checkpoint INTEGER NOT NULL,
	digest TEXT NOT NULL,
	PRIMARY KEY (checkpoint, digest),
	FOREIGN KEY(checkpoint) REFERENCES rk_checkpoint (id),
	CONSTRAINT rk_blob_in_use FOREIGN KEY(digest) REFERENCES rk_blob (digest)
);
INSERT INTO "rk_checkpoint_blob" VALUES(1,'604c3e77f80e126765b5cfb0b06eb5d5f6767784b31dd3e10c91c318cafd4753');
CREATE TABLE rk_event (
	id INTEGER NOT NULL,
	uid TEXT NOT NULL,
	created DOUBLE NOT NULL,
	kind TEXT NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (id),
	FOREIGN KEY(uid) REFERENCES rk_task (uid)
);
INSERT INTO "rk_event" VALUES(1,'a',1.79525187084701204299e+09,'start','{"owner":"host:boot:1:1","token":1,"epochs":0}');
INSERT INTO "rk_event" VALUES(2,'a',1.79525187086101317406e+09,'mode','{"exact":true}');
CREATE TABLE rk_metric (
	uid TEXT NOT NULL,
	epoch INTEGER NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (uid, epoch),
	FOREIGN KEY(uid) REFERENCES rk_task (uid)
);
INSERT INTO "rk_metric" VALUES('a',3,'{"return":21.5}');
CREATE TABLE rk_schema (
	version INTEGER NOT NULL
);
INSERT INTO "rk_schema" VALUES(1);
CREATE TABLE rk_segment (
	study TEXT NOT NULL,
	number INTEGER NOT NULL,
	rung INTEGER NOT NULL,
	epochs INTEGER NOT NULL,
	state TEXT NOT NULL,
	score DOUBLE,
	digest TEXT,
	PRIMARY KEY (study, number, rung),
	FOREIGN KEY(study, number) REFERENCES rk_trial (study, number)
);
INSERT INTO "rk_segment" VALUES('s',0,0,3,'ready',NULL,NULL);
CREATE TABLE rk_study (
	name TEXT NOT NULL,
	config TEXT NOT NULL,
	created DOUBLE NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "rk_study" VALUES('s','{"trials":1}',1.79525187087099099159e+09);
CREATE TABLE rk_task (
	uid TEXT NOT NULL,
	identity TEXT,
	lease_owner TEXT,
	lease_epoch INTEGER NOT NULL,
	lease_expires DOUBLE NOT NULL,
	epochs INTEGER NOT NULL,
	created DOUBLE NOT NULL,
	PRIMARY KEY (uid)
);
INSERT INTO "rk_task" VALUES('a','{"algorithm":"ppo"}',NULL,1,1.7952518708699851036e+09,3,1.79525187083598828318e+09);
CREATE TABLE rk_trial (
	study TEXT NOT NULL,
	number INTEGER NOT NULL,
	uid TEXT NOT NULL,
	params TEXT NOT NULL,
	attrs TEXT NOT NULL,
	state TEXT NOT NULL,
	error TEXT,
	created DOUBLE NOT NULL,
	finished DOUBLE,
	PRIMARY KEY (study, number),
	FOREIGN KEY(study) REFERENCES rk_study (name)
);
INSERT INTO "rk_trial" VALUES('s',0,'a','{"gamma":0.99}','{}','running',NULL,1.79525187087199687959e+09,NULL);
CREATE INDEX rk_checkpoint_uid ON rk_checkpoint (uid, epochs);
CREATE INDEX rk_event_uid ON rk_event (uid);
CREATE INDEX rk_checkpoint_blob_digest ON rk_checkpoint_blob (digest);
CREATE INDEX rk_segment_state ON rk_segment (study, state);
COMMIT;
